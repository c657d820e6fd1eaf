"""What `fdcnet learn` does. Its defaults are here, where the command's help finds them without torch."""

BACKBONE = "efficientnet_lite0"  # its weights come with pip
HOLDOUT = 0.2  # fraction of new photos held out for evaluation
MEMORY_PER_CLASS = 20
KEEP = 3  # earlier versions
