"""The models of the Triton repository: what each model.py calls, tensors, config.pbtxt. Imports api and below."""
