import { Button, Drawer, Stack, Text, TextInput, Title } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { useDebouncedValue } from '@mantine/hooks';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconDownload, IconSearch } from '@tabler/icons-react';
import { useState } from 'react';
import { choiceName } from '../../api/choice-names';
import type { Schemas } from '../../api/client';
import { send, useList, withQuery } from '../../api/objects';
import { formatNumber, formatTime } from '../../format';
import { DataTable, pagesOf, type Column } from '../../ui/data-table';
import { download } from '../../ui/download';
import { Facts, Page } from '../../ui/page';
import { ShowCall } from '../../ui/show-call';
import { EmptyState } from '../../ui/states';
import { Ago } from '../../ui/time';
import { useUrlState } from '../../ui/url-state';
import { auditCsv, dayStartMs } from './audit-file';
import { changesBetween } from './object-changes';

type Entry = Schemas['AuditEntry'];

const path = '/api/v1/audit-log';
const refreshMs = 10_000;
/** Entries of a file at most. */
const maxExported = 20_000;
const exportedPage = 1_000;

/** Who changed what, and when. */
export default function AuditPage() {
  const { t } = useLingui();
  const [actor, setActor] = useUrlState('actor');
  const [action, setAction] = useUrlState('action');
  const [subject, setSubject] = useUrlState('subject');
  const [from, setFrom] = useUrlState('from');
  const [to, setTo] = useUrlState('to');
  const [isExporting, setExporting] = useState(false);
  const [texts] = useDebouncedValue({ actor: actor.trim(), action: action.trim(), subject: subject.trim() }, 300);
  const filters = { ...texts, from_ms: dayStartMs(from), to_ms: dayStartMs(to, 1) };
  const isOrdered = filters.from_ms === undefined || filters.to_ms === undefined || filters.from_ms < filters.to_ms;
  const [opened, setOpened] = useState<Entry>();
  const log = useList<Entry>(path, filters, { every: refreshMs, pageSize: 200, enabled: isOrdered });
  const save = async () => {
    setExporting(true);
    try {
      const entries: Entry[] = [];
      let after: string | null | undefined;
      do {
        const query = { ...filters, after, limit: exportedPage };
        const page = await send<{ data: Entry[]; next: string | null }>('GET', withQuery(path, query));
        entries.push(...page.data);
        after = page.next;
      } while (after && entries.length < maxExported);
      if (after) {
        const count = formatNumber(entries.length);
        notifications.show({ message: t`The file has the newest ${count} entries. Choose days for older ones.` });
      }
      download('audit-log.csv', auditCsv(entries), 'text/csv');
    } catch (error) {
      notifications.show({ color: 'red', message: t`The export failed: ${(error as Error).message}` });
    }
    setExporting(false);
  };
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
    { id: 'ago', header: t`Age`, cell: (row) => <Ago ms={row.at_ms} />, isHidden: true },
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
    { id: 'role', header: t`Role`, cell: (row) => (row.role ? choiceName('role', row.role) : '–'), isHidden: true },
    { id: 'number', header: t`Number`, align: 'right', cell: (row) => row.number, isHidden: true },
  ];
  const isFiltered = Boolean(actor || action || subject || from || to);
  const day = (label: string, value: string, onChange: (value: string) => void) => (
    <label className="row">
      <span className="dimmed">{label}</span>
      <TextInput
        type="date"
        w={140}
        value={value}
        error={!isOrdered}
        onChange={(event) => onChange(event.currentTarget.value)}
      />
    </label>
  );
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
      actions={
        <>
          <ShowCall method="GET" path={withQuery(path, filters)} ctl="audit" />
          <Button
            variant="default"
            leftSection={<IconDownload size={14} />}
            loading={isExporting}
            disabled={!isOrdered}
            onClick={() => void save()}
          >
            CSV
          </Button>
        </>
      }
    >
      <DataTable
        name="audit"
        label={t`Audit log`}
        columns={columns}
        rowKey={(row) => String(row.number)}
        {...pagesOf(log)}
        rows={isOrdered ? log.rows : []}
        toolbar={
          <>
            {field(t`Who`, actor, setActor, true)}
            {field(t`Action, such as user.put`, action, setAction)}
            {field(t`Subject`, subject, setSubject)}
            {day(t`First day`, from, setFrom)}
            {day(t`Last day`, to, setTo)}
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
