"""What every process of a mesh needs: options, logs, failpoints."""
