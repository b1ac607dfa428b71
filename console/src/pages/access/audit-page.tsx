import { Drawer, Stack, Text, TextInput, Title } from '@mantine/core';
import { useDebouncedValue } from '@mantine/hooks';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconSearch } from '@tabler/icons-react';
import { useState } from 'react';
import type { Schemas } from '../../api/client';
import { useList } from '../../api/objects';
import { formatTime } from '../../format';
import { DataTable, pagesOf, type Column } from '../../ui/data-table';
import { Facts, Page } from '../../ui/page';
import { ShowCall } from '../../ui/show-call';
import { EmptyState } from '../../ui/states';
import { Ago } from '../../ui/time';
import { useUrlState } from '../../ui/url-state';
import { changesBetween } from './object-changes';

type Entry = Schemas['AuditEntry'];

const path = '/api/v1/audit-log';
const refreshMs = 10_000;

/** Who changed what, and when. */
export default function AuditPage() {
  const { t } = useLingui();
  const [actor, setActor] = useUrlState('actor');
  const [action, setAction] = useUrlState('action');
  const [subject, setSubject] = useUrlState('subject');
  const [filters] = useDebouncedValue({ actor: actor.trim(), action: action.trim(), subject: subject.trim() }, 300);
  const [opened, setOpened] = useState<Entry>();
  const log = useList<Entry>(path, filters, { every: refreshMs, pageSize: 200 });
  const columns: Column<Entry>[] = [
    {
      id: 'time',
      header: t`Time`,
      cell: (row) => (
        <button type="button" className="link-button" onClick={() => setOpened(row)}>
          {formatTime(row.at_ms)}
        </button>
      ),
    },
    { id: 'ago', header: t`Ago`, cell: (row) => <Ago ms={row.at_ms} />, isHidden: true },
    { id: 'actor', header: t`Who`, cell: (row) => row.actor },
    { id: 'action', header: t`Action`, cell: (row) => <span className="mono">{row.action}</span> },
    { id: 'subject', header: t`Subject`, cell: (row) => row.subject ?? '–' },
    {
      id: 'changes',
      header: t`Changed fields`,
      cell: (row) =>
        changesBetween(row.before, row.after)
          .map(({ field }) => field)
          .join(', ') || '–',
    },
    { id: 'address', header: t`Address`, cell: (row) => <span className="mono">{row.address}</span> },
    { id: 'role', header: t`Role`, cell: (row) => row.role ?? '–', isHidden: true },
    { id: 'number', header: t`Number`, align: 'right', cell: (row) => row.number, isHidden: true },
  ];
  const isFiltered = Boolean(actor || action || subject);
  const field = (label: string, value: string, onChange: (value: string) => void, icon = false) => (
    <TextInput
      aria-label={label}
      placeholder={label}
      leftSection={icon ? <IconSearch size={14} /> : undefined}
      w={180}
      value={value}
      onChange={(event) => onChange(event.currentTarget.value)}
    />
  );
  return (
    <Page
      title={t`Audit log`}
      description={<Trans>Every change over the API and this console, and every failed login.</Trans>}
      actions={<ShowCall method="GET" path={path} ctl="audit" />}
    >
      <DataTable
        name="audit"
        label={t`Audit log`}
        columns={columns}
        rowKey={(row) => String(row.number)}
        {...pagesOf(log)}
        toolbar={
          <>
            {field(t`Who`, actor, setActor, true)}
            {field(t`Action, such as user.put`, action, setAction)}
            {field(t`Subject`, subject, setSubject)}
          </>
        }
        empty={
          isFiltered ? (
            <EmptyState title={<Trans>Nothing matches</Trans>}>
              <Trans>Change the search or the filters.</Trans>
            </EmptyState>
          ) : (
            <EmptyState title={<Trans>No entries yet</Trans>} />
          )
        }
      />
      {opened && (
        <Drawer opened onClose={() => setOpened(undefined)} position="right" size="lg" title={opened.action}>
          <EntryDetails entry={opened} />
        </Drawer>
      )}
    </Page>
  );
}

function text(value: unknown): string {
  if (value === undefined) return '–';
  return typeof value === 'string' ? value : JSON.stringify(value, null, 2);
}

function EntryDetails({ entry }: { entry: Entry }) {
  const changes = changesBetween(entry.before, entry.after);
  return (
    <Stack gap="md">
      <Facts
        rows={[
          [<Trans>Time</Trans>, formatTime(entry.at_ms)],
          [<Trans>Who</Trans>, entry.actor],
          [<Trans>Login</Trans>, entry.authentication ?? '–'],
          [<Trans>Role</Trans>, entry.role ?? '–'],
          [<Trans>Address</Trans>, <span className="mono">{entry.address}</span>],
          [<Trans>Subject</Trans>, entry.subject ?? '–'],
          [
            <Trans>Version</Trans>,
            entry.version_before == null && entry.version_after == null
              ? '–'
              : `${entry.version_before ?? '–'} → ${entry.version_after ?? '–'}`,
          ],
        ]}
      />
      {changes.length > 0 && (
        <>
          <Title order={3}>
            <Trans>Changes</Trans>
          </Title>
          {changes.map(({ field, before, after }) => (
            <div key={field}>
              <Text size="sm" fw={600}>
                {field}
              </Text>
              <div className="diff">
                <pre className="json diff-before">{text(before)}</pre>
                <pre className="json diff-after">{text(after)}</pre>
              </div>
            </div>
          ))}
        </>
      )}
    </Stack>
  );
}
