"""Stand-in packages that misbehave as real ones were seen to, each in an interpreter of its own."""
