"""What an operator's monitoring sees: counters, histograms and gauges, most of them derived from events."""
