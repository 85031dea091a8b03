"""Logistic regression on handwritten digits with scikit-learn, and FedAdam in every hub."""
