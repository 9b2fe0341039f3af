"""Many videos: a list of jobs, what is kept between them, and their spread over machines by Ray."""
