"""Classification, denoising, inspection and segmentation of images."""
