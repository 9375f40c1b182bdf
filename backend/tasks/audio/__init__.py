"""What all tasks that produce sound share: progress reports and the files they write."""
