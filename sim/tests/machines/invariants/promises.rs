//! A promise leaves a token to compute, parks the request if the layout or the mode asks for it,
//! and is not repeated after it was broken.

use crate::request::Request;

pub(crate) fn check(request: &Request, local: u64, external: u64, parked: bool, parks: bool) {
    let name = &request.name;
    assert_eq!(parked, parks && external > 0, "{name}: parked {parked}");
    assert!(
        local + external < request.text.len(),
        "{name}: the last token must be computed"
    );
    assert!(
        external == 0 || !request.failed_before,
        "{name}: a hit that failed was offered again"
    );
}
