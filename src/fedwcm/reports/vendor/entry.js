/* What a report draws with, and no more: the bundle is made from this file. */
import * as echarts from "echarts/core";
import { BarChart, CustomChart, HeatmapChart, LineChart, ScatterChart } from "echarts/charts";
import {
  AriaComponent,
  DataZoomComponent,
  GridComponent,
  LegendComponent,
  MarkLineComponent,
  TooltipComponent,
  VisualMapComponent,
} from "echarts/components";
import { CanvasRenderer, SVGRenderer } from "echarts/renderers";

echarts.use([BarChart, CustomChart, HeatmapChart, LineChart, ScatterChart]);
echarts.use([AriaComponent, DataZoomComponent, GridComponent, LegendComponent]);
echarts.use([MarkLineComponent, TooltipComponent, VisualMapComponent]);
echarts.use([CanvasRenderer, SVGRenderer]);

window.echarts = echarts;
