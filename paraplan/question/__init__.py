"""What is asked: model, cluster, training, framework, the space to search, how to balance."""
