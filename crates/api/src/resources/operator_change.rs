//! Changes of one field of a stored operator.

use store::ExpectedVersion;

use crate::access::{OPERATOR_KIND, StoredOperator};
use crate::call::ApiCall;
use crate::object_store::run_on_store;
use crate::objects::{ObjectChangeError, Operators, change_object};
use crate::problem_details::ProblemDetails;

/// Changes an operator as it is now. The caller holds no lock, and records the change.
pub(super) async fn change_operator(
    call: &ApiCall,
    username: &str,
    change: impl Fn(&mut StoredOperator) -> Result<(), ProblemDetails>,
) -> Result<(), ProblemDetails> {
    let change = &change;
    change_object(&call.app, (OPERATOR_KIND, username), |object| async move {
        let object = object.ok_or_else(|| operator_not_found(username))?;
        let mut operator: StoredOperator =
            serde_json::from_value(object.value).map_err(|error| {
                ProblemDetails::unavailable(format!("The stored operator cannot be read: {error}."))
            })?;
        change(&mut operator)?;
        let value = serde_json::to_value(operator).expect("its fields are plain");
        let name = username.to_owned();
        let expected = ExpectedVersion::Version(object.version);
        run_on_store(&call.app, move |objects| {
            Operators::check_remaining_admin(objects, &name, Some(&value))?;
            objects.put(OPERATOR_KIND, &name, value, expected)?;
            Ok::<_, ObjectChangeError>(())
        })
        .await?
    })
    .await
}

pub(super) fn operator_not_found(username: &str) -> ProblemDetails {
    ProblemDetails::not_found(format!("There is no operator {username:?}."))
}
