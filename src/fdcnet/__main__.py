"""`python -m fdcnet`"""

from fdcnet.cli import main

if __name__ == "__main__":
    main()
