//! Placeholder of the suite.
