import { Trans, useLingui } from '@lingui/react/macro';
import { Link } from 'wouter';
import type { Schemas } from '../../api/client';
import { useList } from '../../api/objects';
import { DataTable, pagesOf, type Column } from '../../ui/data-table';
import { EmptyState } from '../../ui/states';
import { conditionText, type AlarmRule } from './condition';
import { SeverityBadge, type Severity } from './severity';

interface Row {
  product: string;
  rule: AlarmRule;
}

/** The alarm rules of all products; they are changed where the product is. */
export function AlarmRuleOverview() {
  const { t } = useLingui();
  const products = useList<Schemas['Product']>('/api/v1/products');
  const words = { and: t`and`, or: t`or` };
  const rows = products.rows?.flatMap((product) =>
    ((product.alarms ?? []) as unknown as AlarmRule[]).map((rule): Row => ({ product: product.id, rule })),
  );
  const href = ({ product }: Row) => `/products/${encodeURIComponent(product)}?tab=alarms`;
  const columns: Column<Row>[] = [
    {
      id: 'id',
      header: t`Alarm`,
      sort: ({ rule }) => rule.id,
      cell: (row) => (
        <Link href={href(row)} className="link">
          {row.rule.id}
        </Link>
      ),
    },
    { id: 'product', header: t`Product`, sort: ({ product }) => product, cell: ({ product }) => product },
    {
      id: 'raise',
      header: t`Raised when`,
      cell: ({ rule }) => (
        <span className="row">
          {rule.raise.map((clause, index) => (
            <span className="row" key={index}>
              <SeverityBadge severity={clause.severity as Severity} />
              <span className="mono">{conditionText(clause.when, words)}</span>
            </span>
          ))}
        </span>
      ),
    },
    {
      id: 'active',
      header: t`Active`,
      cell: ({ rule }) => (rule.enabled === false ? <Trans>no</Trans> : <Trans>yes</Trans>),
    },
  ];
  return (
    <DataTable
      name="all-alarm-rules"
      label={t`Alarm rules`}
      columns={columns}
      rowKey={(row) => `${row.product} ${row.rule.id}`}
      rowHref={href}
      {...pagesOf(products)}
      rows={rows}
      empty={
        <EmptyState
          title={<Trans>No alarm rules yet</Trans>}
          actions={
            <Link href="/products" className="link">
              <Trans>Open the products</Trans>
            </Link>
          }
        >
          <Trans>An alarm rule belongs to a product and watches the values of all its devices.</Trans>
        </EmptyState>
      }
    />
  );
}
