/** Edits a list of alarm rules: those of a product, or those of the node. */

import {
  ActionIcon,
  Button,
  Card,
  Drawer,
  Group,
  JsonInput,
  MultiSelect,
  NumberInput,
  SegmentedControl,
  Select,
  Stack,
  Switch,
  Text,
  TextInput,
  Title,
} from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlus, IconTrash } from '@tabler/icons-react';
import { useState, type FormEvent, type ReactNode } from 'react';
import { choiceName } from '../../api/choice-names';
import { useList } from '../../api/objects';
import { useConditionalSave, withItem, withoutItem, type ReadValue } from '../../ui/conditional-save';
import { Confirm } from '../../ui/confirm';
import { DataTable, type Column } from '../../ui/data-table';
import { EmptyState } from '../../ui/states';
import { VersionConflict } from '../../ui/version-conflict';
import {
  comparisons,
  conditionText,
  flat,
  isComplete,
  nested,
  operandText,
  parseOperand,
  type AlarmRule,
  type Clause,
  type Condition,
  type Test,
} from './condition';
import { SeverityBadge, useSeverityOptions, type Severity } from './severity';

const maxRaise = 8;

interface RuleListProps {
  stored: ReadValue<AlarmRule[]> | undefined;
  /** Reads the newest version. */
  read: () => Promise<ReadValue<AlarmRule[]>>;
  mayChange: boolean;
  /** Keys that conditions can use. */
  keys: string[];
  /** Whether keys other than those are an error. */
  areKeysFixed?: boolean;
  empty: ReactNode;
  toolbar?: ReactNode;
  error?: Error | null;
}

export function AlarmRuleList({ stored, read, mayChange, keys, empty, toolbar, error }: RuleListProps) {
  const { t } = useLingui();
  const rules = stored?.value;
  // The rules as they were when one was opened: what is saved is a change of these.
  const [edited, setEdited] = useState<{ rule?: AlarmRule; opened: ReadValue<AlarmRule[]> } | null>(null);
  const words = { and: t`and`, or: t`or` };
  const columns: Column<AlarmRule>[] = [
    {
      id: 'id',
      header: t`Alarm`,
      sort: (rule) => rule.id,
      cell: (rule) => (
        <button type="button" className="link-button" onClick={() => stored && setEdited({ rule, opened: stored })}>
          {rule.id}
        </button>
      ),
    },
    {
      id: 'raise',
      header: t`Raised when`,
      cell: (rule) => (
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
      id: 'clear',
      header: t`Cleared when`,
      cell: (rule) =>
        rule.clear ? <span className="mono">{conditionText(rule.clear.when, words)}</span> : <Trans>by hand</Trans>,
    },
    { id: 'notify', header: t`Notifications`, cell: (rule) => rule.notify?.join(', ') || '–' },
    {
      id: 'enabled',
      header: t`Active`,
      cell: (rule) => (rule.enabled === false ? <Trans>no</Trans> : <Trans>yes</Trans>),
    },
  ];
  const add = mayChange && (
    <Button
      leftSection={<IconPlus size={14} />}
      disabled={!stored}
      onClick={() => stored && setEdited({ opened: stored })}
    >
      <Trans>New alarm rule</Trans>
    </Button>
  );
  return (
    <>
      <DataTable
        name="alarm-rules"
        label={t`Alarm rules`}
        columns={columns}
        rows={rules}
        rowKey={(rule) => rule.id}
        error={error}
        toolbar={
          <div className="row wrap table-actions">
            {toolbar}
            {add}
          </div>
        }
        empty={
          <EmptyState title={<Trans>No alarm rules yet</Trans>} actions={add}>
            {empty}
          </EmptyState>
        }
      />
      {edited && (
        <RuleDrawer {...edited} read={read} keys={keys} mayChange={mayChange} onClose={() => setEdited(null)} />
      )}
    </>
  );
}

const newRule: AlarmRule = { id: '', raise: [{ severity: 'MAJOR', when: { key: '', is: '>' } }] };

interface RuleDrawerProps {
  rule?: AlarmRule;
  opened: ReadValue<AlarmRule[]>;
  read: () => Promise<ReadValue<AlarmRule[]>>;
  keys: string[];
  mayChange: boolean;
  onClose: () => void;
}

function RuleDrawer({ rule, opened, read, keys, mayChange, onClose }: RuleDrawerProps) {
  const { t } = useLingui();
  const [value, setValue] = useState<AlarmRule>(rule ?? newRule);
  const [view, setView] = useState('form');
  const [loads, setLoads] = useState(0);
  const [isDeleting, setDeleting] = useState(false);
  const edit = useConditionalSave(opened, read, onClose);
  const removal = useConditionalSave(opened, read, onClose);
  const [isSubmitted, setSubmitted] = useState(false);
  const severities = useSeverityOptions();
  const notifications = useList<{ name: string }>('/api/v1/notifications');
  const set = (change: Partial<AlarmRule>) => setValue((previous) => ({ ...previous, ...change }));
  const isTaken = value.id !== rule?.id && edit.value.some((each) => each.id === value.id);
  const changed = (rules: AlarmRule[]) => withItem(rules, rule?.id, value);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    setSubmitted(true);
    if (isComplete(value) && !isTaken) void edit.save(changed);
  };
  const load = (rules: AlarmRule[]) => {
    const theirs = rules.find((each) => each.id === rule?.id);
    // They have removed it, or it is a new one.
    if (rule && !theirs) onClose();
    if (theirs) setValue(theirs);
    setLoads((previous) => previous + 1);
  };
  const isMissing = (condition: Condition) =>
    isSubmitted && !isComplete({ id: 'x', raise: [{ severity: '', when: condition }] });
  return (
    <Drawer opened onClose={onClose} position="right" size="lg" title={rule?.id ?? t`New alarm rule`}>
      <form onSubmit={submit} noValidate>
        <Stack gap="md">
          <SegmentedControl
            size="xs"
            aria-label={t`View`}
            value={view}
            onChange={setView}
            data={[
              { value: 'form', label: t`Form` },
              { value: 'json', label: t`JSON` },
            ]}
          />
          {view === 'json' ? (
            <RuleJson key={loads} value={value} onChange={setValue} />
          ) : (
            <>
              <TextInput
                label={t`Alarm type`}
                description={t`A device has at most one active alarm of a type.`}
                withAsterisk
                value={value.id}
                error={
                  isTaken
                    ? t`There is already a rule with this name`
                    : isSubmitted && value.id === ''
                      ? t`Required`
                      : undefined
                }
                onChange={(event) => set({ id: event.currentTarget.value })}
              />
              <Title order={3}>
                <Trans>Raise</Trans>
              </Title>
              {value.raise.map((clause, index) => (
                <Card key={`${loads} ${index}`} withBorder padding="sm">
                  <Stack gap="xs">
                    <Group justify="space-between">
                      <Select
                        aria-label={t`Severity`}
                        w={180}
                        allowDeselect={false}
                        data={severities}
                        value={clause.severity}
                        onChange={(severity) =>
                          set({ raise: replaced(value.raise, index, { ...clause, severity: severity ?? 'MAJOR' }) })
                        }
                      />
                      {value.raise.length > 1 && (
                        <ActionIcon
                          aria-label={t`Remove this severity`}
                          onClick={() => set({ raise: value.raise.filter((_, at) => at !== index) })}
                        >
                          <IconTrash size={14} />
                        </ActionIcon>
                      )}
                    </Group>
                    <ClauseEditor
                      clause={clause}
                      keys={keys}
                      isMissing={isMissing(clause.when)}
                      onChange={(next) => set({ raise: replaced(value.raise, index, { ...clause, ...next }) })}
                    />
                  </Stack>
                </Card>
              ))}
              {value.raise.length < maxRaise && (
                <Button
                  variant="subtle"
                  leftSection={<IconPlus size={12} />}
                  style={{ alignSelf: 'flex-start' }}
                  onClick={() =>
                    set({ raise: [...value.raise, { severity: 'CRITICAL', when: { key: keyOf(value), is: '>' } }] })
                  }
                >
                  <Trans>Add a severity</Trans>
                </Button>
              )}
              <Switch
                label={t`Clear by a condition`}
                description={t`Without it, an operator clears the alarm.`}
                checked={value.clear != null}
                onChange={(event) =>
                  set({ clear: event.currentTarget.checked ? { when: { key: keyOf(value), is: '<' } } : undefined })
                }
              />
              {value.clear && (
                <Card key={loads} withBorder padding="sm">
                  <ClauseEditor
                    clause={value.clear}
                    keys={keys}
                    isMissing={isMissing(value.clear.when)}
                    onChange={(clear) => set({ clear })}
                  />
                </Card>
              )}
              <TextInput
                label={t`Text`}
                description={t`Placeholders: keys of the conditions, deviceId, deviceName, productId, type, severity.`}
                placeholder={'${temperature} °C at ${deviceName}'}
                value={value.details ?? ''}
                onChange={(event) => set({ details: event.currentTarget.value || undefined })}
              />
              <MultiSelect
                label={t`Notifications`}
                description={t`Notifications that cover all alarms need not be listed.`}
                data={(notifications.rows ?? []).map((each) => each.name)}
                value={value.notify ?? []}
                onChange={(notify) => set({ notify })}
              />
              <Switch
                label={t`Also an alarm of the gateway`}
                checked={value.propagate ?? false}
                onChange={(event) => set({ propagate: event.currentTarget.checked })}
              />
              <Switch
                label={t`Active`}
                checked={value.enabled ?? true}
                onChange={(event) => set({ enabled: event.currentTarget.checked })}
              />
            </>
          )}
          {edit.isConflict ? (
            <VersionConflict {...edit.conflict(changed, load)} />
          ) : (
            edit.error && (
              <Text size="sm" c="var(--tg-critical)" role="alert">
                {edit.error.message}
              </Text>
            )
          )}
        </Stack>
        {mayChange && (
          <div className="drawer-footer">
            {rule ? (
              <Button variant="default" leftSection={<IconTrash size={14} />} onClick={() => setDeleting(true)}>
                <Trans>Delete this rule</Trans>
              </Button>
            ) : (
              <span />
            )}
            <Button type="submit" loading={edit.isPending}>
              <Trans>Save</Trans>
            </Button>
          </div>
        )}
      </form>
      {isDeleting && rule && (
        <Confirm
          title={<Trans>Delete the alarm rule {rule.id}?</Trans>}
          action={<Trans>Delete this rule</Trans>}
          isPending={removal.isPending}
          error={removal.error}
          onClose={() => setDeleting(false)}
          onConfirm={() => void removal.save((rules) => withoutItem(rules, rule.id))}
        >
          <Text size="sm">
            <Trans>It raises no more alarms. Alarms that it has raised stay.</Trans>
          </Text>
        </Confirm>
      )}
    </Drawer>
  );
}

function replaced<T>(list: T[], index: number, value: T): T[] {
  return list.map((each, at) => (at === index ? value : each));
}

const keyOf = (rule: AlarmRule) => (rule.raise[0] && flat(rule.raise[0].when)?.tests[0]?.key) ?? '';

function ClauseEditor<C extends Clause>({
  clause,
  keys,
  isMissing,
  onChange,
}: {
  clause: C;
  keys: string[];
  isMissing: boolean;
  onChange: (clause: C) => void;
}) {
  const { t } = useLingui();
  const condition = flat(clause.when);
  const kind = clause.times != null ? 'times' : clause.for_s != null ? 'for' : 'once';
  return (
    <Stack gap="xs">
      {condition === undefined ? (
        <Text size="sm" c="dimmed">
          <Trans>This condition is nested; change it as JSON.</Trans>
        </Text>
      ) : (
        <>
          {condition.tests.length > 1 && (
            <SegmentedControl
              size="xs"
              aria-label={t`Combination`}
              value={condition.mode}
              onChange={(mode) => onChange({ ...clause, when: nested({ ...condition, mode: mode as 'all' | 'any' }) })}
              data={[
                { value: 'all', label: t`all of these` },
                { value: 'any', label: t`any of these` },
              ]}
            />
          )}
          {condition.tests.map((test, index) => (
            <TestEditor
              key={index}
              test={test}
              keys={keys}
              onChange={(next) =>
                onChange({ ...clause, when: nested({ ...condition, tests: replaced(condition.tests, index, next) }) })
              }
              onRemove={
                condition.tests.length > 1
                  ? () =>
                      onChange({
                        ...clause,
                        when: nested({ ...condition, tests: condition.tests.filter((_, at) => at !== index) }),
                      })
                  : undefined
              }
            />
          ))}
          <Button
            variant="subtle"
            size="compact-xs"
            leftSection={<IconPlus size={12} />}
            style={{ alignSelf: 'flex-start' }}
            onClick={() =>
              onChange({
                ...clause,
                when: nested({ ...condition, tests: [...condition.tests, { key: '', is: '>' }] }),
              })
            }
          >
            <Trans>Add a test</Trans>
          </Button>
        </>
      )}
      {isMissing && (
        <Text size="xs" c="var(--tg-critical)" role="alert">
          <Trans>A key and a value are required.</Trans>
        </Text>
      )}
      <Group gap="xs" align="flex-end">
        <Select
          label={t`Must hold`}
          w={190}
          allowDeselect={false}
          value={kind}
          data={[
            { value: 'once', label: t`once` },
            { value: 'for', label: t`for a time` },
            { value: 'times', label: t`for several messages` },
          ]}
          onChange={(next) => {
            const { for_s: _f, times: _t, within_s: _w, ...rest } = clause;
            const timing = next === 'for' ? { for_s: 30 } : next === 'times' ? { times: 3 } : {};
            onChange({ ...rest, ...timing } as C);
          }}
        />
        {kind === 'for' && (
          <NumberInput
            label={t`Seconds`}
            w={110}
            min={0}
            value={clause.for_s ?? ''}
            onChange={(next) => onChange({ ...clause, for_s: Number(next) })}
          />
        )}
        {kind === 'times' && (
          <>
            <NumberInput
              label={t`Messages`}
              w={110}
              min={1}
              value={clause.times ?? ''}
              onChange={(next) => onChange({ ...clause, times: Number(next) })}
            />
            <NumberInput
              label={t`Within seconds`}
              placeholder={t`consecutive`}
              w={130}
              min={1}
              value={clause.within_s ?? ''}
              onChange={(next) => onChange({ ...clause, within_s: next === '' ? undefined : Number(next) })}
            />
          </>
        )}
      </Group>
    </Stack>
  );
}

function TestEditor({
  test,
  keys,
  onChange,
  onRemove,
}: {
  test: Test;
  keys: string[];
  onChange: (test: Test) => void;
  onRemove?: () => void;
}) {
  const { t } = useLingui();
  const [text, setText] = useState(operandText(test.value));
  return (
    <div className="row wrap">
      <TextInput
        aria-label={t`Key`}
        placeholder={t`Key`}
        className="grow"
        miw={120}
        list="alarm-keys"
        classNames={{ input: 'mono' }}
        value={test.key}
        onChange={(event) => onChange({ ...test, key: event.currentTarget.value })}
      />
      <datalist id="alarm-keys">
        {['$online', ...keys].map((key) => (
          <option key={key} value={key} />
        ))}
      </datalist>
      <Select
        aria-label={t`Comparison`}
        w={130}
        allowDeselect={false}
        value={test.is}
        data={comparisons.map((is) => ({
          value: is,
          label: is === 'silent_for' ? t`silent for (s)` : choiceName('is', is),
        }))}
        onChange={(is) =>
          onChange({ ...test, is: is ?? '>', value: text === '' ? undefined : parseOperand(text, is ?? '>') })
        }
      />
      <TextInput
        aria-label={t`Value`}
        placeholder={test.is === 'between' ? t`10, 20` : t`Value`}
        w={110}
        value={text}
        onChange={(event) => {
          const next = event.currentTarget.value;
          setText(next);
          onChange({ ...test, value: next === '' ? undefined : parseOperand(next, test.is) });
        }}
      />
      <TextInput
        aria-label={t`Attribute with the limit`}
        placeholder={t`or attribute`}
        title={t`A server attribute of the device; the value applies to devices without it.`}
        w={120}
        value={test.attribute ?? ''}
        onChange={(event) => onChange({ ...test, attribute: event.currentTarget.value || undefined })}
      />
      {onRemove && (
        <ActionIcon aria-label={t`Remove this test`} onClick={onRemove}>
          <IconTrash size={14} />
        </ActionIcon>
      )}
    </div>
  );
}

function RuleJson({ value, onChange }: { value: AlarmRule; onChange: (rule: AlarmRule) => void }) {
  const { t } = useLingui();
  const [text, setText] = useState(() => JSON.stringify(value, null, 2));
  const [isWrong, setWrong] = useState(false);
  return (
    <JsonInput
      aria-label={t`JSON`}
      autosize
      minRows={12}
      maxRows={30}
      classNames={{ input: 'mono' }}
      value={text}
      error={isWrong ? t`This is not an alarm rule; the last valid text applies` : undefined}
      onChange={(next) => {
        setText(next);
        try {
          const parsed = JSON.parse(next) as AlarmRule;
          const isRule = typeof parsed.id === 'string' && Array.isArray(parsed.raise);
          setWrong(!isRule);
          if (isRule) onChange(parsed);
        } catch {
          setWrong(true);
        }
      }}
    />
  );
}
