from hypothesis import settings

settings.register_profile("house", deadline=None)  # no test asserts a wall-clock time
settings.load_profile("house")
