import { Button } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlus } from '@tabler/icons-react';
import { Link } from 'wouter';
import { api, unwrap, usePages, useRead, type Schemas } from '../../api/client';
import { mayOnNode, useCaller } from '../../api/session';
import { formatNumber } from '../../format';
import { newRulePath } from '../../new-paths';
import { DataTable, pagesOf, type Column } from '../../ui/data-table';
import { Page } from '../../ui/page';
import { SearchToolbar, useSearch } from '../../ui/search-toolbar';
import { EmptyState } from '../../ui/states';
import { Ago } from '../../ui/time';
import { useUrlState } from '../../ui/url-state';
import { formatNanoseconds, RuleStateBadge } from './rule-state';

type Rule = Schemas['Rule'];
type Status = Schemas['RuleStatus'];

const pageSize = 200;
const maxStates = 1_000;
const refreshMs = 5_000;

export const ruleHref = (name: string) => `/rules/${encodeURIComponent(name)}`;

export default function RulesPage() {
  const { t } = useLingui();
  const caller = useCaller();
  const [filter, setFilter] = useUrlState('state', 'all');
  const search = useSearch();
  const { wanted } = search;
  const rules = usePages<Rule>(['rules', wanted], (after, signal) =>
    unwrap(
      api.GET('/api/v1/rules', {
        params: { query: { after, limit: pageSize, ...(wanted ? { id_contains: wanted } : {}) } },
        signal,
      }),
    ),
  );
  const states = useRead(
    ['rule-status'],
    async (signal) => {
      const page = await unwrap(api.GET('/api/v1/rule-status', { params: { query: { limit: maxStates } }, signal }));
      return new Map(page.data.map((status) => [status.name, status]));
    },
    { every: refreshMs },
  );
  const needsAttention = (rule: Rule) => {
    const status = states.data?.get(rule.name);
    return status !== undefined && (status.state === 'invalid' || status.last_error !== null);
  };
  const rows =
    filter === 'problems'
      ? rules.rows?.filter(needsAttention)
      : filter === 'disabled'
        ? rules.rows?.filter((rule) => !rule.enabled)
        : rules.rows;
  const cell = (show: (status: Status) => React.ReactNode) => (rule: Rule) => (
    <WithStatus name={rule.name} known={states.data} show={show} />
  );
  const columns: Column<Rule>[] = [
    {
      id: 'name',
      header: t`Name`,
      cell: (rule) => (
        <Link href={ruleHref(rule.name)} className="link">
          {rule.name}
        </Link>
      ),
    },
    { id: 'state', header: t`State`, cell: cell((status) => <RuleStateBadge status={status} />) },
    {
      id: 'matched',
      header: t`Matched`,
      align: 'right',
      cell: cell((status) => formatNumber(status.counters.matched ?? 0)),
    },
    {
      id: 'passed',
      header: t`With output`,
      align: 'right',
      cell: cell((status) => formatNumber(status.counters.passed ?? 0)),
    },
    {
      id: 'failed',
      header: t`Failed`,
      align: 'right',
      cell: cell((status) => <Count value={(status.counters.failed ?? 0) + (status.counters.actions_failed ?? 0)} />),
    },
    { id: 'p99', header: 'p99', align: 'right', cell: cell((status) => formatNanoseconds(status.p99_ns)) },
    {
      id: 'error',
      header: t`Last error`,
      cell: cell((status) =>
        status.last_error ? (
          <span className="row">
            <Ago ms={status.last_error.at_ms} />
            <span title={status.last_error.text}>{status.last_error.text}</span>
          </span>
        ) : (
          (status.problem ?? '–')
        ),
      ),
    },
    { id: 'actions', header: t`Actions`, cell: (rule) => rule.actions.map(({ kind }) => kind).join(', ') || '–' },
    { id: 'sql', header: t`Statement`, cell: (rule) => <span className="mono">{rule.sql}</span>, isHidden: true },
    { id: 'description', header: t`Description`, cell: (rule) => rule.description || '–', isHidden: true },
  ];
  const add = mayOnNode(caller, 'operator') && (
    <Button component={Link} href={newRulePath} leftSection={<IconPlus size={14} />}>
      <Trans>Write a rule</Trans>
    </Button>
  );
  return (
    <Page
      title={t`Rules`}
      description={t`Statements over messages and events. Their outputs are published, stored or sent to other systems.`}
      actions={add}
    >
      <DataTable
        name="rules"
        label={t`Rules`}
        columns={columns}
        rowKey={(rule) => rule.name}
        rowHref={(rule) => ruleHref(rule.name)}
        {...pagesOf(rules)}
        rows={rows}
        toolbar={
          <SearchToolbar
            label={t`Part of a name`}
            search={search}
            state={filter}
            setState={setFilter}
            states={[
              { value: 'all', label: t`All` },
              { value: 'problems', label: t`With problems` },
              { value: 'disabled', label: t`Disabled` },
            ]}
          />
        }
        empty={
          wanted || filter !== 'all' ? (
            <EmptyState title={<Trans>No rule matches</Trans>}>
              <Trans>Change the search or the filter.</Trans>
            </EmptyState>
          ) : (
            <EmptyState title={<Trans>No rules yet</Trans>} actions={add}>
              <Trans>
                A rule selects messages with SQL, and publishes, stores or forwards what it makes of them. Try one on a
                message that just arrived.
              </Trans>
            </EmptyState>
          )
        }
      />
    </Page>
  );
}

/** The state of a rule: from the list, or read for itself if the list is too short. */
function WithStatus({
  name,
  known,
  show,
}: {
  name: string;
  known: Map<string, Status> | undefined;
  show: (status: Status) => React.ReactNode;
}) {
  const listed = known?.get(name);
  const own = useRead(
    ['rule-status', name],
    (signal) => unwrap(api.GET('/api/v1/rules/{name}/status', { params: { path: { name } }, signal })),
    { enabled: known !== undefined && known.size >= maxStates && listed === undefined },
  );
  const status = listed ?? own.data;
  return <>{status ? show(status) : '–'}</>;
}

function Count({ value }: { value: number }) {
  return value > 0 ? <span className="state-critical">{formatNumber(value)}</span> : <>0</>;
}
