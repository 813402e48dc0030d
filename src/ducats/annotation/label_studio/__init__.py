"""Label Studio (community edition): push questions and pull answers through its REST API."""
