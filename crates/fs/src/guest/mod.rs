//! What guests have in common, whatever carries their requests.

mod owners;
mod view;

pub use owners::{Ids, Owners};
pub use view::GuestView;
