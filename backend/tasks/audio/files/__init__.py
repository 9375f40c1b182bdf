"""The audio files that jobs return: file formats, metadata tags, and a writer."""
