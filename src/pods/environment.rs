//! receptor's environment variables for Kubernetes, which apply to all work types of a node: their names,
//! their meaning, and warnings about those without effect. The caller supplies a lookup; nothing here reads
//! the environment.

use std::time::Duration;

use crate::duration;

/// Default requests per second; the default burst is ten times as many.
const QPS: u32 = 100;
const BURST: u32 = 10;
/// The longest allowed first delay.
const LONGEST_FIRST: Duration = Duration::from_secs(60);

/// The settings from the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodEnvironment {
    /// The rate limit for one cluster and credential; `None` for no limit.
    pub rate: Option<Rate>,
    /// The first delay between attempts.
    pub first_pause: Duration,
    /// Warnings to log once.
    pub warnings: Vec<String>,
}

/// A token bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Requests a second.
    pub qps: u32,
    /// Requests at once.
    pub burst: u32,
}

/// A limiter that would let no request pass.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "RECEPTOR_KUBE_CLIENTSET_RATE_LIMITER=never refuses every request: unset it, or use always for no limit"
)]
pub struct NeverLimiter;

impl PodEnvironment {
    /// Reads the variables through `value`, which looks one up by name.
    ///
    /// # Errors
    /// [`NeverLimiter`]: no request to any API server would ever pass.
    pub fn read(value: impl Fn(&str) -> Option<String>) -> Result<Self, NeverLimiter> {
        let mut warnings = Vec::new();
        let qps = positive(&value, "RECEPTOR_KUBE_CLIENTSET_QPS", &mut warnings).unwrap_or(QPS);
        let burst = positive(&value, "RECEPTOR_KUBE_CLIENTSET_BURST", &mut warnings);
        let burst = burst.unwrap_or(qps.saturating_mul(BURST));
        let rate =
            match value("RECEPTOR_KUBE_CLIENTSET_RATE_LIMITER").unwrap_or_default().to_lowercase().as_str() {
                "never" => return Err(NeverLimiter),
                "always" => None,
                _ => Some(Rate { qps, burst }),
            };
        if value("RECEPTOR_KUBE_SUPPORT_RECONNECT").is_some_and(|text| text.eq_ignore_ascii_case("disabled"))
        {
            warnings.push(
                "RECEPTOR_KUBE_SUPPORT_RECONNECT=disabled has no effect here: a log that breaks off is always resumed"
                    .into(),
            );
        }
        if value("RECEPTOR_KUBE_RETRY_COUNT").is_some() {
            warnings.push(
                "RECEPTOR_KUBE_RETRY_COUNT has no effect here: attempts go on for as long as apioutage says"
                    .into(),
            );
        }
        Ok(Self { rate, first_pause: first_pause(&value, &mut warnings), warnings })
    }
}

fn positive(value: impl Fn(&str) -> Option<String>, name: &str, warnings: &mut Vec<String>) -> Option<u32> {
    let text = value(name).filter(|text| !text.is_empty())?;
    let number = text.trim().parse().ok().filter(|number| *number > 0);
    if number.is_none() {
        warnings.push(format!("{name} must be a whole number above 0, so {text:?} is ignored"));
    }
    number
}

/// The pause from RECEPTOR_KUBE_TIMEOUT_START, or else from the older RECEPTOR_OPEN_LOGSTREAM_TIMEOUT.
fn first_pause(value: impl Fn(&str) -> Option<String>, warnings: &mut Vec<String>) -> Duration {
    let second = Duration::from_secs(1);
    if let Some(text) = value("RECEPTOR_KUBE_TIMEOUT_START").filter(|text| !text.is_empty()) {
        match duration::parse(&text) {
            Ok(pause) if !pause.is_zero() => return pause.min(LONGEST_FIRST),
            Ok(_) => {}
            Err(error) => warnings.push(format!("RECEPTOR_KUBE_TIMEOUT_START is ignored: {error}")),
        }
    }
    let seconds = value("RECEPTOR_OPEN_LOGSTREAM_TIMEOUT").and_then(|text| text.trim().parse().ok());
    seconds.map_or(second, |seconds: u64| Duration::from_secs(seconds).clamp(second, LONGEST_FIRST))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<PodEnvironment, NeverLimiter> {
        PodEnvironment::read(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn nothing_set_means_receptors_defaults() {
        let expected = PodEnvironment {
            rate: Some(Rate { qps: 100, burst: 1000 }),
            first_pause: Duration::from_secs(1),
            warnings: Vec::new(),
        };
        assert_eq!(read(&[]), Ok(expected));
    }

    #[test]
    fn the_rate_is_as_the_variables_say() {
        let rate = |variables: &[(&str, &str)]| read(variables).unwrap().rate;
        assert_eq!(rate(&[("RECEPTOR_KUBE_CLIENTSET_QPS", "7")]), Some(Rate { qps: 7, burst: 70 }));
        let both = [("RECEPTOR_KUBE_CLIENTSET_QPS", "7"), ("RECEPTOR_KUBE_CLIENTSET_BURST", "9")];
        assert_eq!(rate(&both), Some(Rate { qps: 7, burst: 9 }));
        assert_eq!(rate(&[("RECEPTOR_KUBE_CLIENTSET_RATE_LIMITER", "Always")]), None);
        assert_eq!(read(&[("RECEPTOR_KUBE_CLIENTSET_RATE_LIMITER", "never")]), Err(NeverLimiter));
        for bad in ["0", "-1", "many"] {
            let read = read(&[("RECEPTOR_KUBE_CLIENTSET_QPS", bad)]).unwrap();
            assert_eq!((read.rate, read.warnings.len()), (Some(Rate { qps: 100, burst: 1000 }), 1), "{bad}");
        }
    }

    #[test]
    fn the_first_pause_has_two_names_and_bounds() {
        let pause = |variables: &[(&str, &str)]| read(variables).unwrap().first_pause.as_millis();
        for (text, millis) in [("3", 3000), ("0", 1000), ("x", 1000), ("999", 60_000)] {
            assert_eq!(pause(&[("RECEPTOR_OPEN_LOGSTREAM_TIMEOUT", text)]), millis, "{text}");
        }
        for (text, millis) in [("250ms", 250), ("5m", 60_000), ("0", 1000), ("x", 1000)] {
            assert_eq!(pause(&[("RECEPTOR_KUBE_TIMEOUT_START", text)]), millis, "{text}");
        }
    }

    #[test]
    fn what_changes_nothing_is_said() {
        let variables = [("RECEPTOR_KUBE_SUPPORT_RECONNECT", "disabled"), ("RECEPTOR_KUBE_RETRY_COUNT", "5")];
        assert_eq!(read(&variables).unwrap().warnings.len(), 2);
        assert!(read(&[("RECEPTOR_KUBE_SUPPORT_RECONNECT", "auto")]).unwrap().warnings.is_empty());
    }
}
