"""What a study will cost, before anything runs: GPU memory, tokens, FLOPs, GPU hours and disk, rule by rule.

Memory is found by taking one training step on tensors without data (memory.py): the trainer's own code, the model's own
layers, no formula that could fall behind them. Tokens, FLOPs and disk are counted (work.py).
"""
