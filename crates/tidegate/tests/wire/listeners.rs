//! Listeners.
