"""The generation tasks without their engines: text, lyrics, music, songs, stems, audio files, and their options."""
