"""`python -m fdcnet`"""

from fdcnet.cli import main

main()
