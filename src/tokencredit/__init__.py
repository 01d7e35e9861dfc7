"""tokencredit: which token of a solution deserves the reward?"""

__version__ = "0.1.0"
