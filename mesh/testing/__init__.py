"""What tests of tools and providers need: see the modules."""
