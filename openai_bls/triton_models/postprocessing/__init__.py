"""Model `postprocessing`: detokenization for the ensembles."""
