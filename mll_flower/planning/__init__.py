"""Plans: which tau, q and graph reach a goal soonest, by runs on a simulated clock."""
