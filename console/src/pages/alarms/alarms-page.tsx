import { Tabs } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { useCaller } from '../../api/session';
import { formatNumber } from '../../format';
import { Page } from '../../ui/page';
import { useUrlState } from '../../ui/url-state';
import { AlarmList, useAlarmCounts } from './alarm-list';
import { AlarmRuleOverview } from './alarm-rule-overview';
import { NodeAlarmRules } from './node-alarm-rules';
import { Notifications } from './notifications';
import { severities, SeverityName } from './severity';

export default function AlarmsPage() {
  const { t } = useLingui();
  const caller = useCaller();
  const [tab, setTab] = useUrlState('tab', 'alarms');
  return (
    <Page title={t`Alarms`} description={<Trans>Faults of devices and of the node, as they happen.</Trans>}>
      <Tabs value={tab} onChange={(value) => setTab(value ?? 'alarms')} keepMounted={false}>
        <Tabs.List>
          <Tabs.Tab value="alarms">
            <Trans>Alarms</Trans>
          </Tabs.Tab>
          <Tabs.Tab value="rules">
            <Trans>Alarm rules</Trans>
          </Tabs.Tab>
          <Tabs.Tab value="notifications">
            <Trans>Notifications</Trans>
          </Tabs.Tab>
          {caller.role !== null && (
            <Tabs.Tab value="node">
              <Trans>Node alarms</Trans>
            </Tabs.Tab>
          )}
        </Tabs.List>
        <Tabs.Panel value="alarms" pt="md">
          <div className="page">
            {caller.role !== null && <Counts />}
            <AlarmList />
          </div>
        </Tabs.Panel>
        <Tabs.Panel value="rules" pt="md">
          <AlarmRuleOverview />
        </Tabs.Panel>
        <Tabs.Panel value="notifications" pt="md">
          <Notifications />
        </Tabs.Panel>
        <Tabs.Panel value="node" pt="md">
          <NodeAlarmRules />
        </Tabs.Panel>
      </Tabs>
    </Page>
  );
}

/** Active alarms by severity; a tile filters the list. */
function Counts() {
  const counts = useAlarmCounts();
  const [severity, setSeverity] = useUrlState('severity');
  return (
    <div className="tiles">
      {severities.map((each) => {
        const count = counts.data?.active_by_severity[each] ?? 0;
        const isChosen = severity === each;
        const critical = each === 'CRITICAL' || each === 'MAJOR' ? 'state-critical' : 'state-warning';
        return (
          <button
            key={each}
            type="button"
            className="tile tile-button"
            aria-pressed={isChosen}
            onClick={() => setSeverity(isChosen ? '' : each)}
          >
            <span className="tile-label">
              <SeverityName severity={each} />
            </span>
            <span className={`tile-value ${count > 0 ? critical : ''}`}>{counts.data ? formatNumber(count) : '–'}</span>
          </button>
        );
      })}
    </div>
  );
}
