//! What an expression names.

use promql_parser::parser::{self, Expr, LabelModifier, VectorMatchCardinality, VectorSelector};

/// Selectors, labels and windows of one expression.
#[derive(Debug, Default)]
pub struct Named {
    pub selectors: Vec<VectorSelector>,
    /// Labels that results are grouped or matched by.
    pub labels: Vec<String>,
    /// Windows of `rate` and `irate`, in seconds.
    pub rates_s: Vec<u64>,
    /// What is wrong with the expression by itself.
    pub faults: Vec<String>,
}

/// Reads an expression; the error says why it is none.
pub fn read(expr: &str) -> Result<Named, String> {
    let mut named = Named::default();
    named.walk(&parser::parse(expr)?);
    Ok(named)
}

impl Named {
    fn walk(&mut self, expr: &Expr) {
        match expr {
            Expr::Aggregate(aggregate) => {
                self.modifier(aggregate.modifier.as_ref());
                aggregate.param.iter().for_each(|param| self.walk(param));
                self.walk(&aggregate.expr);
            }
            Expr::Unary(unary) => self.walk(&unary.expr),
            Expr::Paren(paren) => self.walk(&paren.expr),
            Expr::Subquery(subquery) => self.walk(&subquery.expr),
            Expr::Binary(binary) => {
                if let Some(modifier) = &binary.modifier {
                    self.modifier(modifier.matching.as_ref());
                    if let VectorMatchCardinality::ManyToOne(labels)
                    | VectorMatchCardinality::OneToMany(labels) = &modifier.card
                    {
                        self.labels.extend(labels.labels.iter().cloned());
                    }
                }
                self.walk(&binary.lhs);
                self.walk(&binary.rhs);
            }
            Expr::Call(call) => {
                if call.func.name == "histogram_quantile"
                    && !sums_buckets(call.args.args.last().map(|last| &**last))
                {
                    self.faults.push("histogram_quantile of something else than `sum by (le, …)`".to_owned());
                }
                for argument in &call.args.args {
                    if let (Expr::MatrixSelector(matrix), "rate" | "irate") = (&**argument, call.func.name) {
                        self.rates_s.push(matrix.range.as_secs());
                    }
                    self.walk(argument);
                }
            }
            Expr::VectorSelector(selector) => self.selectors.push(selector.clone()),
            Expr::MatrixSelector(matrix) => self.selectors.push(matrix.vs.clone()),
            Expr::NumberLiteral(_) | Expr::StringLiteral(_) => {}
            Expr::Extension(_) => self.faults.push("an extension of PromQL".to_owned()),
        }
    }

    fn modifier(&mut self, modifier: Option<&LabelModifier>) {
        if let Some(LabelModifier::Include(labels) | LabelModifier::Exclude(labels)) = modifier {
            self.labels.extend(labels.labels.iter().cloned());
        }
    }
}

fn sums_buckets(of: Option<&Expr>) -> bool {
    let Some(Expr::Aggregate(aggregate)) = of else { return false };
    let by_le = matches!(&aggregate.modifier, Some(LabelModifier::Include(by)) if by.labels.iter().any(|label| label == "le"));
    aggregate.op.to_string() == "sum" && by_le
}

/// The selector by itself, now: without window and offset.
pub fn plain(selector: &VectorSelector) -> String {
    VectorSelector { offset: None, at: None, ..selector.clone() }.to_string()
}
