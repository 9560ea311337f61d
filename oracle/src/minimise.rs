//! Makes a program that shows a difference smaller, as long as it shows one.

use crate::generate::Plan;

/// `differs` runs a plan. Leaves out threads, epochs, items, watches and rounds in turn.
pub fn minimise(mut plan: Vec<Plan>, differs: &mut dyn FnMut(&[Plan]) -> bool) -> Vec<Plan> {
    let mut budget = 400;
    let mut attempt = |plan: &mut Vec<Plan>, change: &dyn Fn(&mut Vec<Plan>)| {
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
    let each = |p: &mut Vec<Plan>, change: &dyn Fn(&mut Plan)| p.iter_mut().for_each(change);
    while plan.len() > 2 && attempt(&mut plan, &|p| p.truncate(p.len() - 1)) {}
    while plan[0].epochs.len() > 1
        && attempt(&mut plan, &|p| {
            each(p, &|p| p.epochs.truncate(p.epochs.len() - 1))
        })
    {}
    while plan[0].epochs.len() > 1
        && attempt(&mut plan, &|p| {
            each(p, &|p| p.epochs.drain(..1).for_each(drop))
        })
    {}
    for e in 0..plan[0].epochs.len() {
        for t in 0..plan.len() {
            attempt(&mut plan, &|p| p[t].epochs[e].rounds = 1);
            while plan[t].epochs[e].rounds > 1
                && attempt(&mut plan, &|p| p[t].epochs[e].rounds /= 2)
            {}
            let mut chunk = plan[t].epochs[e].items.len();
            while chunk > 0 {
                let mut at = 0;
                while at < plan[t].epochs[e].items.len() {
                    let to = (at + chunk).min(plan[t].epochs[e].items.len());
                    if !attempt(&mut plan, &|p| {
                        p[t].epochs[e].items.drain(at..to).for_each(drop)
                    }) {
                        at = to;
                    }
                }
                chunk /= 2;
            }
        }
        let mut n = 0;
        while n < plan[0].epochs[e].watches.len() {
            // The generator aims at watches: leaving one out changes the items, which is fine.
            if !attempt(&mut plan, &|p| {
                each(p, &|p| p.epochs[e].watches.drain(n..n + 1).for_each(drop))
            }) {
                n += 1;
            }
        }
        attempt(&mut plan, &|p| each(p, &|p| p.epochs[e].rounds = 1));
    }
    plan
}
