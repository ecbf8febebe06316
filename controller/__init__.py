"""The quorum that knows the cluster and elects leaders from the ISR."""
