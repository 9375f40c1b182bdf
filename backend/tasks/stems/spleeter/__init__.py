"""A reimplementation of Spleeter's two-stem network, with Deezer's weights (MIT) from a TensorFlow checkpoint.

Hennequin, Khlif, Voituret, Moussallam, "Spleeter: a fast and efficient music source separation tool with pre-trained
models", JOSS 5(50), 2020; the network after Jansson et al., "Singing voice separation with deep U-Net convolutional
networks", ISMIR 2017.
"""
