"""Makes the plugin importable under its release name, before any test is loaded."""

from dev.importable import keep_astrbot_out_of_the_checkout, make_plugin_importable

make_plugin_importable()
keep_astrbot_out_of_the_checkout()
