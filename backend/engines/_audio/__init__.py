"""Parts of the engines that generate audio: sessions, composers, memory placement."""
