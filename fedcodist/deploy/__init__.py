"""Real federations: what devices do with a question, Flower's two apps, and what sets up, starts and watches the processes.

The engine and its checks are `engines.flower`. Here alone Flower is imported, and only where it is used.
"""
