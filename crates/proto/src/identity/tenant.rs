//! The tenant of an object: who is charged for it.
//!
//! Called by the client when it saves, and by the node, which hashes the names that its operator
//! gave limits to. The tenant's name is part of the namespace too; the digest of that says nothing
//! of it, so the header of an object carries this tag beside it.

/// Separates tenant tags from all other uses of the hash.
const DOMAIN: &[u8] = b"tessera tenant v1";

/// Names a tenant in the header of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantTag(pub u64);

impl TenantTag {
    /// Of objects whose engine names no tenant.
    pub const NONE: Self = Self(0);

    /// The tag of a tenant: the first eight bytes of BLAKE3 over a domain tag and the name, and
    /// [`Self::NONE`] for the empty name.
    #[must_use]
    pub fn of(name: &str) -> Self {
        if name.is_empty() {
            return Self::NONE;
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(DOMAIN).update(name.as_bytes());
        let digest: [u8; 32] = hasher.finalize().into();
        let (first, _) = digest.split_first_chunk().expect("32 bytes are eight");
        Self(u64::from_le_bytes(*first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_tell_tenants_apart_and_no_name_is_none() {
        assert_eq!(TenantTag::of(""), TenantTag::NONE);
        assert_ne!(TenantTag::of("a"), TenantTag::of("b"));
        assert_ne!(TenantTag::of("a"), TenantTag::NONE);
        // Made by `printf 'tessera tenant v1team-a' | b3sum`, its first sixteen digits.
        let golden = 0x4f1c_a395_a2a2_75c6_u64;
        assert_eq!(TenantTag::of("team-a").0.swap_bytes(), golden);
    }
}
