//! Which API servers are too old. Before these releases a kubelet could end a log in the middle without a word, so that
//! nobody can tell whether it is complete (Kubernetes PR 113481). Asks no server.

use serde_json::Value;

/// The first releases that are good enough, by minor version.
const FIRST_PATCH: [(u32, u32); 3] = [(23, 14), (24, 8), (25, 4)];

/// Why a server with this answer to `GET /version` cannot be used. A server that names no release, for example one
/// built from a branch, counts as new.
pub fn too_old(answer: &Value) -> Option<String> {
    let name = answer["gitVersion"].as_str()?;
    let (minor, patch) = release(name)?;
    let first = FIRST_PATCH.iter().find(|(first, _)| minor <= *first)?;
    let (_, enough) = first;
    if minor == first.0 && patch >= *enough {
        return None;
    }
    Some(format!(
        "the API server is Kubernetes {name}, whose logs may end early without notice: upgrade it to 1.23.14, 1.24.8, \
         1.25.4 or later"
    ))
}

/// Minor version and patch of a release of Kubernetes 1.
fn release(name: &str) -> Option<(u32, u32)> {
    let mut numbers = name.strip_prefix("v1.")?.split(['.', '-', '+']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn releases_that_lose_lines_are_refused_by_name() {
        let refusal = |name: &str| too_old(&json!({"major": "1", "gitVersion": name}));
        for old in ["v1.9.0", "v1.22.17", "v1.23.13", "v1.24.7-eks-1234", "v1.25.3+k3s1", "v1.25.0-rc.1"] {
            assert!(refusal(old).is_some_and(|text| text.contains(old)), "{old}");
        }
        let others = [
            "v1.23.14",
            "v1.24.8-gke.2",
            "v1.25.4",
            "v1.26.0",
            "v1.33.1",
            "v0.0.0-master+$Format:%H$",
            "",
            "v2.0.0",
        ];
        for new in others {
            assert_eq!(refusal(new), None, "{new}");
        }
        assert_eq!(too_old(&json!(["no version"])), None);
    }
}
