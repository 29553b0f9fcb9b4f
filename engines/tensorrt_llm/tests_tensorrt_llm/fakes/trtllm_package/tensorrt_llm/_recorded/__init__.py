"""Classes of the package, made from what openai_bls has recorded of them."""
