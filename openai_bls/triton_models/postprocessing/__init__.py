"""The model `postprocessing`: detokenization for the ensembles."""
