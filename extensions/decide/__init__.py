"""Would FP8 pay for your model? An estimate from what others measured."""
