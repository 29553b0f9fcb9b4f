"""Served models: the engines with their tokenizers under their names, and the state of the parts behind them.

Imports task_models.
"""
