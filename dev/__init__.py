"""Tools of the developers: scripted model, QQ client, host process, demo.

Nothing in here is part of a release, and nothing of the plugin imports it.
"""
