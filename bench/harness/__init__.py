"""What bench/run is made of. Standard library only."""
