"""What is generated, independent of the engine: text, lyrics, music, songs, stems, audio, and their options."""
