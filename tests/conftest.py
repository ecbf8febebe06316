"""How every test runs: Hypothesis without stop-watches, because a busy machine is not a bug."""

from hypothesis import settings

settings.register_profile("tidelog", deadline=None, print_blob=True)
settings.load_profile("tidelog")
