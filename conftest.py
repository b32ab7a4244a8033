"""Fixtures for the tests of the core and of the extensions."""

pytest_plugins = ["tests.fixtures", "tests.launch.jobs"]
