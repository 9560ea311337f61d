//! Makes a program that shows a difference smaller, as long as it shows one.

use crate::generate::Plan;

/// `differs` runs a plan. Leaves out epochs, items, watches and rounds in turn.
pub fn minimise(mut plan: Plan, differs: &mut dyn FnMut(&Plan) -> bool) -> Plan {
    let mut budget = 400;
    let mut attempt = |plan: &mut Plan, change: &dyn Fn(&mut Plan)| {
        if budget == 0 {
            return false;
        }
        budget -= 1;
        let mut smaller = plan.clone();
        change(&mut smaller);
        let keep = differs(&smaller);
        if keep {
            *plan = smaller;
        }
        keep
    };
    while plan.epochs.len() > 1 && attempt(&mut plan, &|p| p.epochs.truncate(p.epochs.len() - 1)) {}
    while plan.epochs.len() > 1 && attempt(&mut plan, &|p| p.epochs.drain(..1).for_each(drop)) {}
    for e in 0..plan.epochs.len() {
        attempt(&mut plan, &|p| p.epochs[e].rounds = 1);
        while plan.epochs[e].rounds > 1 && attempt(&mut plan, &|p| p.epochs[e].rounds /= 2) {}
        let mut chunk = plan.epochs[e].items.len().div_ceil(2);
        while chunk > 0 {
            let mut at = 0;
            while at < plan.epochs[e].items.len() {
                let to = (at + chunk).min(plan.epochs[e].items.len());
                if !attempt(&mut plan, &|p| {
                    p.epochs[e].items.drain(at..to).for_each(drop)
                }) {
                    at = to;
                }
            }
            chunk /= 2;
        }
        let mut n = 0;
        while n < plan.epochs[e].watches.len() {
            // The generator aims at watches: leaving one out changes the items, which is fine.
            if !attempt(&mut plan, &|p| {
                p.epochs[e].watches.drain(n..n + 1).for_each(drop)
            }) {
                n += 1;
            }
        }
        attempt(&mut plan, &|p| p.epochs[e].rounds = 1);
    }
    plan
}
